"""Making small Fusion-in-Decoder readers, as ``bundled-fid`` was made: questions, drills, first weights, phases."""
