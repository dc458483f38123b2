"""The noise floor: is float16 farther from float32 than float32 is from itself?

    python -m experiments.floor_of_chance --dataset digits --output docs/results/floor

Training amplifies the smallest disturbance, so two runs in float32 whose initial weights differ by
one unit in the last place become different networks. Their distance is the noise floor: a dtype
whose runs are as far from float32 cannot be told from chance. `rows` lists what is trained,
`traced_run` is one run, `compare` measures how far two runs are apart, and `page` shows it.
"""
