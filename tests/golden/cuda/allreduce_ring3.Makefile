# `make` builds host libraries with g++ (fibers), `make cuda` GPU libraries with nvcc. Each exports the functions at the
# end of treadle_driver.h and treadle_session.h.
ARCH ?= native
CXXFLAGS ?= -O2
NVCCFLAGS ?= -O3 -arch=$(ARCH)
HOST = $(CXX) -std=c++17 $(CXXFLAGS) -shared -fPIC -fno-strict-aliasing -fvisibility=hidden -x c++
CUDA = nvcc -std=c++17 $(NVCCFLAGS) -shared -Xcompiler=-fPIC,-fvisibility=hidden
KERNELS = allreduce interpreter

.PHONY: fibers cuda clean
fibers: $(KERNELS:%=%.fibers.so)
cuda: $(KERNELS:%=%.cuda.so)

interpreter.fibers.so: treadle_interpreter.cu $(wildcard treadle_*.h)
	$(HOST) -DTREADLE_REDUCES=1 -DTREADLE_PROTOCOL=Simple $< -o $@
interpreter.cuda.so: treadle_interpreter.cu $(wildcard treadle_*.h)
	$(CUDA) -DTREADLE_REDUCES=1 -DTREADLE_PROTOCOL=Simple $< -o $@
%.fibers.so: %.cu $(wildcard treadle_*.h)
	$(HOST) -DTREADLE_REDUCES=1 $< -o $@
%.cuda.so: %.cu $(wildcard treadle_*.h)
	$(CUDA) -DTREADLE_REDUCES=1 $< -o $@

clean:
	rm -f $(KERNELS:%=%.fibers.so) $(KERNELS:%=%.cuda.so)
