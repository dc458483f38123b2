"""The floor of chance: is float16 farther from float32 than float32 is from itself?

    python -m experiments.floor_of_chance --dataset digits --output docs/results/floor

Training amplifies the smallest disturbance, so two runs in float32 whose initial weights differ by
one unit in the last place become different networks. This is the floor: a dtype whose runs are as
far from float32 as the floor adds nothing to chance. `rows` lists what is trained, `traced_run` is
one run, `compare` measures how far two runs are from each other, and `page` shows it.
"""
