"""From counts to metrics, decisions and WARN lines; knows no trainer."""
