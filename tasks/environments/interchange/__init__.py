"""Environments of the library `verifiers` (its interface v1) as ours, and ours as its own.

`from_verifiers` plays a taskset of that library, `to_verifiers` is a taskset plugin of it. The library is optional, and
only these modules import it.
"""
