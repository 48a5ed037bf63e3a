/// The flag --metadata: which documents may be found.
#pragma once

#include <CLI/App.hpp>
#include <boost/json/object.hpp>
#include <string>
#include <vector>

namespace quire {

/// Adds --metadata, whose values are conditions such as year>=2020 or lang=en.
void add_metadata_flag(CLI::App& command, std::vector<std::string>& conditions);

/// Returns the member `metadata` of a search. Two values for one key are alternatives.
boost::json::object metadata_of(const std::vector<std::string>& conditions);

}  // namespace quire
