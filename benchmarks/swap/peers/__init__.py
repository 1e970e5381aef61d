"""Other means of swapping, as plans for the same simulator and checker: one file per peer.

* odswap: evicts by LRU when the next operator does not fit, prefetches in graph order, buddy allocator. It decides
  while it runs; the plan holds its decisions.
* vdnn: evicts inputs of convolutions in the forward pass, fetches each a layer ahead. A plan cannot express that a copy
  out starts while its last user still runs; here it starts when that has ended.
* save_on_cpu: `torch.autograd.graph.save_on_cpu`, every saved activation, each copy waited for. A plan cannot express
  that saved parameters are copied too, and that a copy out keeps the tensor; here it is evicted after its last forward
  use.
* torchtune: `OffloadActivations`, saved activations from 1024 bytes on, up to 5 copies in flight. A plan cannot express
  that one stream makes the copies of both directions.
* largest_first: saved activations by size until the rest fits.

All but odswap keep parameters and states on the device. A peer that does not fit returns the memory it needs. The
ideal, unlimited memory, is `SwapProblem.ideal_ns`.
"""
