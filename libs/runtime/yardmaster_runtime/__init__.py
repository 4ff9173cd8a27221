"""Runs a state machine on a log: election, leader, standby, restore, replay, telemetry.

Start reading at `machine.leader`; `clock`, `chance` and `telemetry.port` are its ports. Must not
hold a rule of scheduling or admission.
"""
