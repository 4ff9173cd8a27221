"""The REST and SSE front door of Yardmaster."""
