"""What each stage computes: plain functions from configuration and input tables to output tables.

One module for each stage; `pipeline` decides, runs and commits them. Nothing here imports Prefect.
"""
