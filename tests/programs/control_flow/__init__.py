"""Programs with torch.cond, while_loop, scan, map and associative_scan."""
