"""The decision core: footprint, occupancy, ledger, forecast, tiers, policy. Pure; time is an argument."""
