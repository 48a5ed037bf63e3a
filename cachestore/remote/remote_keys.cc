#include "cachestore/remote/remote_keys.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <array>
#include <cstring>
#include <memory>
#include <span>

#include "base/sha256.h"
#include "cachestore/format/byte_io.h"

namespace quire {
namespace {

struct FreeContext {
  void operator()(EVP_CIPHER_CTX* c) const { EVP_CIPHER_CTX_free(c); }
};
using CipherContext = std::unique_ptr<EVP_CIPHER_CTX, FreeContext>;

unsigned char* bytes_of(std::string& s) { return reinterpret_cast<unsigned char*>(s.data()); }
const unsigned char* bytes_of(std::string_view s) {
  return reinterpret_cast<const unsigned char*>(s.data());
}

/// The key of one context's values. It is forgotten with this object.
class ContextCipherKey {
 public:
  ContextCipherKey(const RemoteKeys::Key& key, const ContextKey& context) {
    ByteWriter w;
    w.text("quire-remote-context");
    w.digest(context);
    const std::string message = w.take();
    unsigned int size = 0;
    ok_ = HMAC(EVP_sha256(), key.bytes.data(), static_cast<int>(key.bytes.size()),
               bytes_of(std::string_view(message)), message.size(), bytes_.data(),
               &size) != nullptr &&
          size == bytes_.size();
  }
  ~ContextCipherKey() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }
  ContextCipherKey(const ContextCipherKey&) = delete;
  ContextCipherKey& operator=(const ContextCipherKey&) = delete;
  bool ok() const { return ok_; }
  const unsigned char* data() const { return bytes_.data(); }

 private:
  std::array<unsigned char, RemoteKeys::kKeyBytes> bytes_{};
  bool ok_ = false;
};

/// Returns the data that a value is authenticated with (docs/formats.md, "Shared tiers").
std::string associated(const ContextKey& context, const record::ValueName& name) {
  ByteWriter w;
  w.text("quire-remote-value");
  w.digest(context);
  w.number(static_cast<std::uint8_t>(name.part));
  w.number(name.block);
  w.number(name.group);
  w.number(name.segment);
  return w.take();
}

}  // namespace

Status RemoteKeys::add(const std::string& ns, std::string_view hex) {
  constexpr std::string_view kSpace = " \t\r\n";
  while (!hex.empty() && kSpace.find(hex.front()) != kSpace.npos) hex.remove_prefix(1);
  while (!hex.empty() && kSpace.find(hex.back()) != kSpace.npos) hex.remove_suffix(1);
  const auto digest = Digest::from_hex(hex);
  if (!digest.ok())
    return Status::invalid("", "the key has " + std::to_string(hex.size()) +
                                   " characters; a key is 64 hexadecimal digits, as of openssl "
                                   "rand -hex 32");
  Key key;
  static_assert(sizeof key.bytes == sizeof digest->bytes);
  std::memcpy(key.bytes.data(), digest->bytes.data(), key.bytes.size());
  Sha256 hash;
  // The first version sealed values with the namespace's key itself.
  hash.update_field("quire-remote-key-2");
  hash.update(std::as_bytes(std::span(key.bytes)));
  const Digest id = hash.finish();
  std::memcpy(&key.id, id.bytes.data(), sizeof key.id);
  if (key.id == 0) key.id = 1;
  keys_[ns] = key;
  return {};
}

const RemoteKeys::Key* RemoteKeys::find(std::string_view ns) const {
  auto it = keys_.find(ns);
  if (it == keys_.end()) it = keys_.find(kOthers);
  return it == keys_.end() ? nullptr : &it->second;
}

std::string seal_value(const RemoteKeys::Key& key, const ContextKey& context,
                       const record::ValueName& name, std::string_view stored) {
  std::string out(kSealBytes + stored.size(), '\0');
  unsigned char* const nonce = bytes_of(out);
  unsigned char* const text = nonce + kSealNonceBytes;
  const std::string with = associated(context, name);
  const CipherContext c(EVP_CIPHER_CTX_new());
  const ContextCipherKey own(key, context);
  int n = 0;
  // Without random numbers or memory no value may go out, and OpenSSL has no other failure here.
  const bool sealed = c && own.ok() && RAND_bytes(nonce, kSealNonceBytes) == 1 &&
                      EVP_EncryptInit_ex(c.get(), EVP_aes_256_gcm(), nullptr, own.data(), nonce) ==
                          1 &&
                      EVP_EncryptUpdate(c.get(), nullptr, &n, bytes_of(std::string_view(with)),
                                        static_cast<int>(with.size())) == 1 &&
                      EVP_EncryptUpdate(c.get(), text, &n, bytes_of(stored),
                                        static_cast<int>(stored.size())) == 1 &&
                      EVP_EncryptFinal_ex(c.get(), text + n, &n) == 1 &&
                      EVP_CIPHER_CTX_ctrl(c.get(), EVP_CTRL_GCM_GET_TAG, kSealTagBytes,
                                          text + stored.size()) == 1;
  QUIRE_CHECK(sealed, "AES-GCM is not available");
  return out;
}

Result<std::string> open_value(const RemoteKeys::Key& key, const ContextKey& context,
                               const record::ValueName& name, std::string_view sealed) {
  const auto refused = [] {
    return Status::corruption("a value does not open with the key of its namespace");
  };
  if (sealed.size() < kSealBytes) return refused();
  const std::size_t size = sealed.size() - kSealBytes;
  std::string out(size, '\0'), tag(sealed.substr(kSealNonceBytes + size));
  const std::string with = associated(context, name);
  const CipherContext c(EVP_CIPHER_CTX_new());
  const ContextCipherKey own(key, context);
  int n = 0;
  const bool opened = c && own.ok() &&
                      EVP_DecryptInit_ex(c.get(), EVP_aes_256_gcm(), nullptr, own.data(),
                                         bytes_of(sealed)) == 1 &&
                      EVP_DecryptUpdate(c.get(), nullptr, &n, bytes_of(std::string_view(with)),
                                        static_cast<int>(with.size())) == 1 &&
                      EVP_DecryptUpdate(c.get(), bytes_of(out), &n,
                                        bytes_of(sealed.substr(kSealNonceBytes)),
                                        static_cast<int>(size)) == 1 &&
                      EVP_CIPHER_CTX_ctrl(c.get(), EVP_CTRL_GCM_SET_TAG, kSealTagBytes,
                                          bytes_of(tag)) == 1 &&
                      EVP_DecryptFinal_ex(c.get(), bytes_of(out) + n, &n) == 1;
  if (!opened) return refused();
  return out;
}

}  // namespace quire
