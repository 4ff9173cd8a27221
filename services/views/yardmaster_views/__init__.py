"""The views service: folds the log into the views that the gateway and the CLI read.

Start reading at `follower`, then `faust_app`; `yardmaster_projections.projection` does the folding.
Must not import another service, or be the source of any fact.
"""
