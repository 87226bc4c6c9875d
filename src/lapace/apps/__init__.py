"""Programs that use the library: commands, server, page, batch engine, letters and cohorts."""
