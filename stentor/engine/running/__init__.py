"""Everything on the device: buffers, steps, codec calls, graphs and streams. It carries out what
`scheduling` plans."""
