"""The division of a resource among queues with quotas, by rank and weight.

No policy uses it yet; `yard conformance` compares it with KAI-Scheduler's.
"""
