"""What a stage is: its inputs and outputs, its context, which parameters play what, its progress."""
