// One host of gloo's AllreduceHalvingDoubling, which PyTorch's own backend does not offer, under several orders.
// Arguments: a folder that all hosts share, the network interface, this host, floats, repeats, orders (hosts by place,
// comma between). Prints for each repeat of each order: the order's number and the seconds this host took.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <gloo/allreduce_halving_doubling.h>
#include <gloo/barrier.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/transport/tcp/device.h>

static std::vector<int> hosts_of(const char* text) {
  std::vector<int> hosts;
  std::stringstream stream(text);
  for (std::string word; std::getline(stream, word, ',');) hosts.push_back(std::stoi(word));
  return hosts;
}

int main(int count, char** arguments) {
  if (count < 7) return 2;
  gloo::transport::tcp::attr attributes;
  attributes.iface = arguments[2];
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  gloo::rendezvous::FileStore files(arguments[1]);
  const int host = std::atoi(arguments[3]);
  const size_t floats = std::atoll(arguments[4]);
  const int repeats = std::atoi(arguments[5]);
  for (int number = 6; number < count; number++) {
    const std::vector<int> order = hosts_of(arguments[number]);
    int place = 0;
    while (order[place] != host) place++;
    gloo::rendezvous::PrefixStore store("order" + std::to_string(number - 6), files);
    auto context = std::make_shared<gloo::rendezvous::Context>(place, static_cast<int>(order.size()));
    context->connectFullMesh(store, device);
    std::vector<float> values(floats, 1.0f);
    gloo::AllreduceHalvingDoubling<float> allreduce(context, {values.data()}, static_cast<int>(floats));
    gloo::BarrierOptions barrier(context);
    float expected = 1.0f;
    for (int repeat = 0; repeat < repeats; repeat++) {
      gloo::barrier(barrier);
      const auto start = std::chrono::steady_clock::now();
      allreduce.run();
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      expected *= static_cast<float>(order.size());
      if (values.front() != expected || values.back() != expected) return 1;
      std::printf("%d %.9f\n", number - 6, took.count());
    }
    gloo::barrier(barrier);
  }
  return 0;
}
