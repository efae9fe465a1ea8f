"""Make small Fusion-in-Decoder readers like ``bundled-fid``: questions, drills, first weights, phases."""
