"""The HTTP client of Yardmaster and the SDK that runs inside a task."""
