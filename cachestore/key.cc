#include "cachestore/key.h"

#include <openssl/evp.h>

#include <algorithm>

namespace quire {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::array<std::byte, 8> le64(std::uint64_t value) {
  std::array<std::byte, 8> out;
  for (int i = 0; i < 8; ++i) out[static_cast<std::size_t>(i)] = static_cast<std::byte>(value >> (8 * i));
  return out;
}

}  // namespace

std::string Digest::hex() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(64);
  for (std::byte b : bytes) {
    out += kDigits[static_cast<unsigned>(b) >> 4];
    out += kDigits[static_cast<unsigned>(b) & 15u];
  }
  return out;
}

Result<Digest> Digest::from_hex(std::string_view text) {
  if (text.size() != 64) return Status::invalid("digest", "expected 64 hex digits, got " + std::to_string(text.size()) + " characters");
  Digest d;
  for (std::size_t i = 0; i < 32; ++i) {
    const int hi = hex_digit(text[2 * i]), lo = hex_digit(text[2 * i + 1]);
    if (hi < 0 || lo < 0) return Status::invalid("digest", "not a hex digit near position " + std::to_string(2 * i));
    d.bytes[i] = static_cast<std::byte>(hi * 16 + lo);
  }
  return d;
}

struct Sha256::Impl {
  EVP_MD_CTX* ctx = EVP_MD_CTX_new();
  Impl() { restart(); }
  ~Impl() { EVP_MD_CTX_free(ctx); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  void restart() { QUIRE_CHECK(ctx != nullptr && EVP_DigestInit_ex(ctx, EVP_sha256(), nullptr) == 1, "SHA-256 is not available"); }
};

Sha256::Sha256() : impl_(std::make_unique<Impl>()) {}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

Sha256& Sha256::update(std::span<const std::byte> bytes) {
  EVP_DigestUpdate(impl_->ctx, bytes.data(), bytes.size());
  return *this;
}
Sha256& Sha256::update(std::string_view text) { return update(std::as_bytes(std::span(text.data(), text.size()))); }
Sha256& Sha256::update_u64(std::uint64_t value) { return update(std::span<const std::byte>(le64(value))); }
Sha256& Sha256::update_field(std::string_view text) { return update_u64(text.size()).update(text); }

Digest Sha256::finish() {
  Digest d;
  unsigned int length = 0;
  EVP_DigestFinal_ex(impl_->ctx, reinterpret_cast<unsigned char*>(d.bytes.data()), &length);
  QUIRE_CHECK(length == 32, "SHA-256 gave another length");
  impl_->restart();
  return d;
}

Digest sha256(std::string_view text) { return Sha256().update(text).finish(); }
Digest sha256(std::span<const std::byte> bytes) { return Sha256().update(bytes).finish(); }

Digest BlockKeyChain::append(std::span<const std::int32_t> token_ids) {
  Sha256 h;
  h.update(last_.bytes).update_u64(token_ids.size());
  std::array<std::byte, 4 * 64> chunk;
  for (std::size_t i = 0; i < token_ids.size();) {
    std::size_t n = 0;
    for (; n < 64 && i < token_ids.size(); ++n, ++i) {
      const auto id = static_cast<std::uint32_t>(token_ids[i]);
      for (std::size_t k = 0; k < 4; ++k) chunk[4 * n + k] = static_cast<std::byte>(id >> (8 * k));
    }
    h.update(std::span<const std::byte>(chunk.data(), 4 * n));
  }
  num_tokens_ += static_cast<std::int64_t>(token_ids.size());
  last_ = h.finish();
  return last_;
}

ContextKey BlockKeyChain::context_key(std::int32_t block_tokens) const {
  return Sha256().update("quire context").update(last_.bytes).update_u64(static_cast<std::uint64_t>(num_tokens_))
      .update_u64(static_cast<std::uint64_t>(block_tokens)).finish();
}

ContextKey BlockKeyChain::context_key(const Digest& seed, std::span<const std::int32_t> token_ids, std::int32_t block_tokens) {
  BlockKeyChain chain(seed);
  const auto step = static_cast<std::size_t>(block_tokens > 0 ? block_tokens : 1);
  for (std::size_t i = 0; i < token_ids.size(); i += step) chain.append(token_ids.subspan(i, std::min(step, token_ids.size() - i)));
  return chain.context_key(block_tokens);
}

}  // namespace quire
