"""Amounts and the index that policies share under which tasks take slots from other owners.

Start reading at `index`. Must not import a policy.
"""
