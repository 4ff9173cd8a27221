"""What runs a Yardmaster machine on a log: leader, standby, restore, replay."""
