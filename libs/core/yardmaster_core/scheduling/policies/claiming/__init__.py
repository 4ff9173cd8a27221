"""Amounts, and the base of the index of policies under which tasks take slots from other owners.

Start reading at `index`. Must not import a policy.
"""
