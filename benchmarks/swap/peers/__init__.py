"""What else people swap with, as plans for the same simulator and checker: one file per peer. The ideal, memory without
end, is `SwapProblem.ideal_ns`.

* odswap: evicts by LRU when the next operator does not fit, prefetches in graph order, buddy allocator. It decides
  while it runs; the plan is what it would decide.
* vdnn: inputs of convolutions leave in the forward pass, each is fetched a layer ahead. A plan cannot say that a copy
  out starts while its last user still runs; here it starts when that has ended.
* save_on_cpu: `torch.autograd.graph.save_on_cpu`, every saved activation, each copy waited for. A plan cannot say that
  saved parameters are copied as well, and that a copy out leaves the tensor in place; here it leaves after its last
  forward use.
* torchtune: `OffloadActivations`, saved activations from 1024 bytes on, at most 5 on their way. A plan cannot say that
  one stream makes the copies of both directions.
* largest_first: saved activations by size until the rest fits.

All but odswap leave parameters and states on the device. What does not fit is told with the memory it needs.
"""
