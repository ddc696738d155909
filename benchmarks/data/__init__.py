"""What the store costs over a run of a thousand iterations.

python -m benchmarks.data.data_plane   replay, SQL, commits and histories
"""
