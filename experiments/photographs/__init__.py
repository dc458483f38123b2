"""ImageNet's weights on a few hundred photographs: a dtype's effect on fine-tuning."""
