/// This file holds what the registries of all sockets share: a table of names and factories, with
/// one line per plug.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace quire {

template <class Plug>
struct PlugEntry {
  std::string_view name;
  std::unique_ptr<Plug> (*make)();
};

template <class Plug>
std::vector<std::string> plug_names(std::span<const PlugEntry<Plug>> entries) {
  std::vector<std::string> names;
  for (const auto& entry : entries) names.emplace_back(entry.name);
  return names;
}

/// Creates the plug with this name. Errors: kInvalidArgument with `field`; the message lists the
/// known names, after the words in `also` (such as "auto, ").
template <class Plug>
Result<std::unique_ptr<Plug>> make_plug(std::span<const PlugEntry<Plug>> entries,
                                        std::string_view name, std::string field,
                                        std::string_view also = "") {
  std::string known(also);
  for (const auto& entry : entries) {
    if (entry.name == name) return entry.make();
    if (&entry != &entries.front()) known += ", ";
    known += entry.name;
  }
  return Status::invalid(std::move(field),
                         "'" + std::string(name) + "' is not known; this build has: " + known);
}

}  // namespace quire
