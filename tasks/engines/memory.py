"""Tells the end of a device's memory from other errors. Imports torch when asked."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a device's memory does not suffice. torch has a class for GPUs alone; its CPU
    allocator raises a RuntimeError."""
    import torch

    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )


def release_cached() -> None:
    """Return what torch's allocator keeps on a GPU, so that smaller pieces find room."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.empty_cache()
