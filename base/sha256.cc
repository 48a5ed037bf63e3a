#include "base/sha256.h"

#include <openssl/evp.h>

#include "base/index.h"

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
  for (int i = 0; i < 8; ++i) out[at(i)] = static_cast<std::byte>(value >> (8 * i));
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
  if (text.size() != 64)
    return Status::invalid(
        "digest", "expected 64 hex digits, got " + std::to_string(text.size()) + " characters");
  Digest d;
  for (std::size_t i = 0; i < 32; ++i) {
    const int hi = hex_digit(text[2 * i]), lo = hex_digit(text[2 * i + 1]);
    if (hi < 0 || lo < 0)
      return Status::invalid("digest", "not a hex digit near position " + std::to_string(2 * i));
    d.bytes[i] = static_cast<std::byte>(hi * 16 + lo);
  }
  return d;
}

struct Sha256::Impl {
  EVP_MD_CTX* ctx = EVP_MD_CTX_new();
  bool finished = false;
  Impl() { init(algorithm()); }
  ~Impl() { EVP_MD_CTX_free(ctx); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  /// Returns the context, ready for the next bytes.
  EVP_MD_CTX* open() {
    if (finished) init(nullptr);  // the same algorithm again
    finished = false;
    return ctx;
  }

 private:
  /// OpenSSL looks an algorithm up by name at each use of EVP_sha256(), which takes longer than
  /// hashing a block of tokens.
  static const EVP_MD* algorithm() {
    static const EVP_MD* const fetched = EVP_MD_fetch(nullptr, "SHA256", nullptr);
    return fetched != nullptr ? fetched : EVP_sha256();
  }
  void init(const EVP_MD* md) {
    QUIRE_CHECK(ctx != nullptr && EVP_DigestInit_ex(ctx, md, nullptr) == 1,
                "SHA-256 is not available");
  }
};

Sha256::Sha256() : impl_(std::make_unique<Impl>()) {}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

Sha256& Sha256::update(std::span<const std::byte> bytes) {
  EVP_DigestUpdate(impl_->open(), bytes.data(), bytes.size());
  return *this;
}
Sha256& Sha256::update(std::string_view text) {
  return update(std::as_bytes(std::span(text.data(), text.size())));
}
Sha256& Sha256::update_u64(std::uint64_t value) {
  return update(std::span<const std::byte>(le64(value)));
}
Sha256& Sha256::update_field(std::string_view text) { return update_u64(text.size()).update(text); }

Digest Sha256::finish() {
  Digest d;
  unsigned int length = 0;
  EVP_DigestFinal_ex(impl_->open(), reinterpret_cast<unsigned char*>(d.bytes.data()), &length);
  QUIRE_CHECK(length == 32, "SHA-256 gave another length");
  impl_->finished = true;
  return d;
}

Digest sha256(std::string_view text) { return Sha256().update(text).finish(); }
Digest sha256(std::span<const std::byte> bytes) { return Sha256().update(bytes).finish(); }

}  // namespace quire
