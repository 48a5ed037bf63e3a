#include "server/service/route_table.h"

#include <algorithm>

namespace quire {
namespace {

std::vector<std::string_view> split(std::string_view pattern) {
  std::vector<std::string_view> out;
  pattern.remove_prefix(1);
  while (!pattern.empty()) {
    const auto end = std::min(pattern.find('/'), pattern.size());
    out.push_back(pattern.substr(0, end));
    pattern.remove_prefix(std::min(end + 1, pattern.size()));
  }
  return out;
}

bool is_param(std::string_view segment) { return segment.size() > 2 && segment.front() == '{'; }

}  // namespace

RouteTable::RouteTable(std::vector<Route> routes) : routes_(std::move(routes)) {
  for (const auto& r : routes_) patterns_.push_back(split(r.pattern));
}

RouteMatch RouteTable::match(std::string_view method, const std::vector<std::string>& path) const {
  RouteMatch out;
  std::vector<std::string_view> segments(path.begin(), path.end());
  if (!segments.empty() && (segments[0] == "documents" || segments[0] == "query"))
    segments.insert(segments.begin(), "v1");
  const std::string_view wanted = method == "HEAD" ? "GET" : method;
  std::size_t best_fixed = 0;
  for (std::size_t i = 0; i < routes_.size(); ++i) {
    const auto& pattern = patterns_[i];
    if (pattern.size() != segments.size()) continue;
    bool same = true;
    std::size_t fixed = 1;
    for (std::size_t k = 0; k < pattern.size() && same; ++k) {
      if (is_param(pattern[k])) continue;
      same = pattern[k] == segments[k];
      ++fixed;
    }
    if (!same) continue;
    // The pattern with more fixed segments wins: "/v1/documents/delete" over "/v1/documents/{id}".
    if (fixed > best_fixed) {
      best_fixed = fixed;
      out = RouteMatch{};
    }
    if (fixed < best_fixed) continue;
    out.style = routes_[i].style;
    out.allowed.push_back(routes_[i].method);
    if (routes_[i].method == wanted) {
      out.route = &routes_[i];
      for (std::size_t k = 0; k < pattern.size(); ++k)
        if (is_param(pattern[k]))
          out.params.emplace_back(pattern[k].substr(1, pattern[k].size() - 2), segments[k]);
    }
  }
  if (std::find(out.allowed.begin(), out.allowed.end(), "GET") != out.allowed.end())
    out.allowed.push_back("HEAD");
  if (!out.allowed.empty()) out.allowed.push_back("OPTIONS");
  return out;
}

}  // namespace quire
