/// This file holds what the registries of all sockets share: plugs by name, with their options.
///
/// A plug is one file in its socket's folder `plugs/`. It defines
/// `void register_<file name>(PlugRegistry<Socket>&)`, which the build calls because the file is
/// there (cmake/plugs.cmake).
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "engine/plug/option_table.h"
#include "engine/plug/plug_options.h"

namespace quire {

/// Words that a registry's errors use.
struct PlugWords {
  std::string_view field;                            ///< field of the request that names a plug
  std::string_view options_field = "cache.options";  ///< field that holds its options
  std::string_view also = "";                        ///< further known names, such as "auto, "
};

/// The plugs of one socket. Build it once, at the first use; then it never changes, so any thread
/// may read it.
template <class Plug>
class PlugRegistry {
 public:
  explicit PlugRegistry(PlugWords words) : words_(words) {}

  /// Adds a plug with options. `make` takes `const Options&` and returns a std::unique_ptr to the
  /// plug.
  template <class Options, class Make>
  void add(std::string_view name, OptionTable<Options> table, Make make) {
    Entry entry{name, table.described(), {}};
    entry.make = [table = std::move(table), make = std::move(make), field = words_.options_field](
                     const PlugOptions& given) -> Result<std::unique_ptr<Plug>> {
      QUIRE_ASSIGN_OR_RETURN(const Options options, table.parse(given, field));
      return std::unique_ptr<Plug>(make(options));
    };
    insert(std::move(entry));
  }
  /// Adds a plug without options.
  template <class Make>
  void add(std::string_view name, Make make) {
    insert({name, {}, [make = std::move(make)](const PlugOptions&) {
              return Result<std::unique_ptr<Plug>>(std::unique_ptr<Plug>(make()));
            }});
  }

  /// Returns the names in alphabetical order.
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const Entry& entry : entries_) names.emplace_back(entry.name);
    return names;
  }
  bool has(std::string_view name) const { return find(name) != nullptr; }
  /// Returns what the plug's options are; empty for an unknown name.
  std::span<const PlugOption> options(std::string_view name) const {
    const Entry* entry = find(name);
    return entry == nullptr ? std::span<const PlugOption>() : std::span(entry->options);
  }
  /// Makes the plug of this name. It takes those of the given options that are its own. Errors:
  /// kInvalidArgument, with the field that names plugs and a message that lists the known names; or
  /// with an option's field.
  Result<std::unique_ptr<Plug>> make(std::string_view name, const PlugOptions& given = {}) const {
    const Entry* entry = find(name);
    if (entry == nullptr) return unknown(name);
    auto plug = entry->make(given);
    if (plug.ok()) (*plug)->name_ = entry->name;
    return plug;
  }

 private:
  struct Entry {
    std::string_view name;
    std::vector<PlugOption> options;
    std::function<Result<std::unique_ptr<Plug>>(const PlugOptions&)> make;
  };

  void insert(Entry entry) {
    const auto at = std::ranges::lower_bound(entries_, entry.name, {}, &Entry::name);
    QUIRE_CHECK(at == entries_.end() || at->name != entry.name, "two plugs have the same name");
    entries_.insert(at, std::move(entry));
  }
  const Entry* find(std::string_view name) const {
    const auto at = std::ranges::lower_bound(entries_, name, {}, &Entry::name);
    return at == entries_.end() || at->name != name ? nullptr : &*at;
  }
  Status unknown(std::string_view name) const {
    std::string known(words_.also);
    for (const Entry& entry : entries_) {
      if (&entry != &entries_.front()) known += ", ";
      known += entry.name;
    }
    return Status::invalid(std::string(words_.field),
                           "'" + std::string(name) + "' is not known; this build has: " + known);
  }

  PlugWords words_;
  std::vector<Entry> entries_;  ///< by name
};

/// Returns the registry of this build's plugs, made at the first call. The socket's header declares
/// `void register_plugs(PlugRegistry<Plug>&)`, which the build defines (cmake/plugs.cmake).
template <class Plug>
const PlugRegistry<Plug>& built_plugs(PlugWords words) {
  static const PlugRegistry<Plug> kRegistry = [&] {
    PlugRegistry<Plug> plugs(words);
    register_plugs(plugs);
    return plugs;
  }();
  return kRegistry;
}

/// The base of every socket: a plug knows the name that it was made by.
template <class Plug>
class NamedPlug {
 public:
  std::string_view name() const { return name_; }

 private:
  friend class PlugRegistry<Plug>;
  std::string_view name_;  ///< empty if no registry made the plug
};

}  // namespace quire
