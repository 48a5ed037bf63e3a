#include "server/hub/file_fetch.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstring>

#include "server/hub/transfer.h"

namespace quire::hub {
namespace {

struct Block {
  std::uint32_t first;
  int bits;
};
/// IPv4 networks that are not part of the public internet (RFC 6890)
constexpr Block kReserved[] = {
    {0x00000000, 8},  {0x0A000000, 8},  {0x64400000, 10}, {0x7F000000, 8},  {0xA9FE0000, 16},
    {0xAC100000, 12}, {0xC0000000, 24}, {0xC0000200, 24}, {0xC0586300, 24}, {0xC0A80000, 16},
    {0xC6120000, 15}, {0xC6336400, 24}, {0xCB007100, 24}, {0xE0000000, 4},  {0xF0000000, 4}};

bool is_public_v4(std::uint32_t address) {
  return std::ranges::none_of(kReserved, [address](const Block& block) {
    return (address ^ block.first) >> (32 - block.bits) == 0;
  });
}

std::uint32_t big_endian(const std::uint8_t* bytes) {
  return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 |
         std::uint32_t{bytes[2]} << 8 | bytes[3];
}

bool is_public_v6(const std::uint8_t* bytes) {
  constexpr std::uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff},
                         kNat64[12] = {0, 0x64, 0xff, 0x9b};
  if (std::memcmp(bytes, kMapped, 12) == 0 || std::memcmp(bytes, kNat64, 12) == 0)
    return is_public_v4(big_endian(bytes + 12));
  if (bytes[0] == 0x20 && bytes[1] == 0x02) return is_public_v4(big_endian(bytes + 2));  // 6to4
  const std::uint32_t first = big_endian(bytes);
  const bool teredo = first == 0x20010000, example = first == 0x20010DB8;
  return bytes[0] >> 5 == 1 && !teredo && !example;  // 2000::/3
}

bool equal_hosts(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) ==
           std::tolower(static_cast<unsigned char>(y));
  });
}

/// Returns a file name's ending for a media type, for addresses that end with none.
std::string ending_of(std::string_view media_type) {
  if (media_type.starts_with("text/html") || media_type.starts_with("application/xhtml"))
    return ".html";
  if (media_type.starts_with("text/markdown")) return ".md";
  if (media_type.starts_with("text/csv")) return ".csv";
  if (media_type.starts_with("application/pdf")) return ".pdf";
  return media_type.starts_with("text/plain") ? ".txt" : "";
}

Status refusal(const TransferReply& reply, const std::string& url) {
  const std::string message = url + ": the host answered " + std::to_string(reply.status);
  if (reply.status == 404 || reply.status == 410) return Status::not_found(message);
  if (reply.status == 429 || reply.status >= 500) return Status::unavailable(message);
  return Status::io(message);
}

}  // namespace

bool host_allowed(std::string_view host, std::string_view port,
                  std::span<const std::string> patterns) {
  return std::ranges::any_of(patterns, [&](std::string_view pattern) {
    const auto colon = pattern.rfind(':');
    const bool has_port = colon != std::string_view::npos && !pattern.ends_with(']') &&
                          pattern.find_first_not_of("0123456789", colon + 1) ==
                              std::string_view::npos;
    if (has_port ? pattern.substr(colon + 1) != port : port != "80" && port != "443") return false;
    if (has_port) pattern = pattern.substr(0, colon);
    if (pattern == "*") return true;
    if (!pattern.starts_with("*.")) return equal_hosts(pattern, host);
    const std::string_view below = pattern.substr(1);
    return host.size() > below.size() &&
           equal_hosts(host.substr(host.size() - below.size()), below);
  });
}

bool is_public_address(const sockaddr* address) {
  if (address->sa_family == AF_INET) {
    sockaddr_in v4;
    std::memcpy(&v4, address, sizeof v4);
    return is_public_v4(ntohl(v4.sin_addr.s_addr));
  }
  if (address->sa_family == AF_INET6) {
    sockaddr_in6 v6;
    std::memcpy(&v6, address, sizeof v6);
    return is_public_v6(v6.sin6_addr.s6_addr);
  }
  return false;
}

Result<FetchedFile> fetch_file(const std::string& url, const FetchRules& rules) {
  QUIRE_ASSIGN_OR_RETURN(const UrlParts parts, split_url(url));
  FetchedFile out;
  TransferRequest request;
  request.url = url;
  request.headers = {"Accept: text/html, application/pdf, text/*;q=0.9, */*;q=0.5"};
  request.limit = std::chrono::seconds(rules.seconds);
  request.allow_url = [&rules](const UrlParts& hop) -> Status {
    if (hop.has_user)
      return Status::invalid("url", "the address names a user; such files are not fetched");
    if (host_allowed(hop.host, hop.port, rules.hosts)) return {};
    return Status::precondition("the host " + hop.host + " (port " + hop.port + ") is not allowed");
  };
  if (!rules.private_addresses)
    request.allow_address = [](const sockaddr* address) { return is_public_address(address); };
  request.on_body = [&](std::string_view piece) -> Status {
    if (out.bytes.size() + piece.size() > rules.max_bytes)
      return Status::exhausted(url + ": is larger than " + std::to_string(rules.max_bytes) +
                               " bytes");
    out.bytes += piece;
    return {};
  };
  auto reply = transfer(request);
  if (!reply.ok()) return reply.status().with_context(url);
  if (reply->status < 200 || reply->status >= 300) return refusal(*reply, url);
  out.url = reply->url;
  out.path = parts.host + parts.path + (parts.query.empty() ? "" : "?" + parts.query);
  while (out.path.ends_with('/')) out.path.pop_back();
  out.name = parts.path.substr(parts.path.rfind('/') + 1);
  if (out.name.empty()) out.name = parts.host;
  const bool known = out.name != parts.host && out.name.find('.') != std::string::npos;
  if (!known) out.name += ending_of(reply->header("content-type"));
  return out;
}

}  // namespace quire::hub
