#include "server/support/request_id.h"

#include <algorithm>
#include <random>

namespace quire {

std::string make_id(std::string_view prefix) {
  static constexpr std::string_view kLetters =
      "0123456789ABCDEFGHJKMNPQRSTVWXYZabcdefghjkmnpqrstvwxyz";
  thread_local std::mt19937_64 random = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  std::uniform_int_distribution<std::size_t> pick(0, kLetters.size() - 1);
  std::string out(prefix);
  for (int i = 0; i < 16; ++i) out.push_back(kLetters[pick(random)]);
  return out;
}

bool valid_request_id(std::string_view id) {
  return !id.empty() && id.size() <= 64 && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           c == '.' || c == '-';
  });
}

std::string trace_id_of(std::string_view traceparent) {
  if (traceparent.size() < 55 || traceparent[2] != '-' || traceparent[35] != '-') return {};
  const auto id = traceparent.substr(3, 32);
  const bool hex = id.find_first_not_of("0123456789abcdef") == std::string_view::npos;
  return hex && id.find_first_not_of('0') != std::string_view::npos ? std::string(id)
                                                                    : std::string();
}

}  // namespace quire
