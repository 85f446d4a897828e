"""Measurements that anybody can repeat: ratios against the stock tools, in one run."""
