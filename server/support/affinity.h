/// This file computes what a load balancer routes by: the header X-Quire-Affinity.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace quire {

inline constexpr const char* kAffinityHeader = "X-Quire-Affinity";

/// Returns the affinity of a set of documents: the first 16 hexadecimal digits of the SHA-256 of
/// the namespace, followed by a zero byte and the id for each distinct id, in order of bytes. It is
/// empty where no document is named. The Python client has the same rule
/// (clients/python/quire_client/_affinity.py); tests/data/affinity.json holds both to it.
std::string affinity_of(std::string_view ns, std::span<const std::string> document_ids);

}  // namespace quire
