"""The admission service of Yardmaster."""
