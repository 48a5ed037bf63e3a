/// This file declares a reply as text for a person at a terminal.
#pragma once

#include <boost/json/object.hpp>
#include <string>

namespace quire {

/// Returns a reply as lines "name  value", and each list of objects as a table below its name.
/// Members of objects are named "outer.inner". Members whose names end in "bytes" are given in KiB,
/// MiB and so on. The member "object" and the pages of a list are left out.
std::string text_table(const boost::json::object& reply);

}  // namespace quire
