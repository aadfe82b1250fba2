"""What a run will take, told before it begins: sizes, memory, time, and how it scales."""
