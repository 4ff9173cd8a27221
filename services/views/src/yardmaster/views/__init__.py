"""The service that folds the Yardmaster log into views."""
