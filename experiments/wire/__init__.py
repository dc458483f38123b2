"""What distributed training exchanges: bytes per step, sums in 16 bits, and scaling by formula."""
