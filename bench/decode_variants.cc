#include "bench/decode_variants.h"

#include <algorithm>

#include "engine/retrieve/retriever.h"

namespace quire::bench {
namespace {

bool is_wanted(const std::vector<std::string>& wanted, const std::string& name) {
  return wanted.empty() || std::ranges::find(wanted, name) != wanted.end();
}

}  // namespace

std::vector<Variant> variants(const std::vector<std::string>& wanted) {
  std::vector<Variant> out = {{.name = "dense"}};
  for (const std::string& name : retrievers().names()) {
    if (name == "dense" || !is_wanted(wanted, name)) continue;
    if (!std::ranges::any_of(retrievers().options(name),
                             [](const PlugOption& o) { return o.name == "decode_resident"; }))
      out.push_back({.name = name});
    else
      for (const char* resident : {"auto", "none"})
        out.push_back({.name = name, .resident = resident});
  }
  return out;
}

std::vector<Variant> ablations(const std::vector<std::string>& wanted) {
  const std::vector<Variant> parts = {
      {.name = "freekv", .resident = "none"},
      {.name = "freekv",
       .resident = "none",
       .without = "speculation",
       .options = {{"decode_tau", "1.1"}}},
      {.name = "freekv", .resident = "none", .without = "second stream", .streams = 1},
      {.name = "freekv",
       .resident = "none",
       .without = "copies beside the computation",
       .streams = 0},
      {.name = "freekv",
       .resident = "none",
       .without = "rerank",
       .options = {{"decode_rerank", "1"}}},
      {.name = "freekv",
       .resident = "none",
       .without = "choices for several steps",
       .options = {{"decode_reuse", "1"}}},
      {.name = "specontext", .resident = "none"},
      {.name = "specontext",
       .resident = "none",
       .without = "elastic loading",
       .options = {{"decode_elastic", "off"}}},
      {.name = "specontext", .resident = "none", .without = "prefetch", .streams = 0},
      {.name = "specontext",
       .resident = "auto",
       .without = "room for more than 8 layers",
       .device_layers = 8},
      {.name = "specontext",
       .resident = "none",
       .without = "adaptive memory, with that room",
       .device_layers = 8},
      {.name = "specontext",
       .resident = "none",
       .without = "a choice in every step",
       .options = {{"decode_reuse", "4"}}},
      {.name = "ctkvr"},
      {.name = "ctkvr", .without = "rerank", .options = {{"decode_rerank", "off"}}},
      {.name = "ctkvr", .without = "choices for several steps", .options = {{"decode_reuse", "1"}}},
      {.name = "ctkvr", .without = "updates", .options = {{"decode_updates", "off"}}},
      {.name = "ctkvr",
       .without = "more than 256 centroids",
       .options = {{"decode_centroids", "256"}}},
  };
  std::vector<Variant> out = {{.name = "dense"}};
  std::ranges::copy_if(parts, std::back_inserter(out),
                       [&](const Variant& v) { return is_wanted(wanted, v.name); });
  return out;
}

}  // namespace quire::bench
