#include "server/hub/file_check.h"

#include <openssl/evp.h>

namespace quire::hub {

void FileHash::Free::operator()(void* context) const {
  EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context));
}

FileHash::FileHash(const HubFile& file) : context_(EVP_MD_CTX_new()) {
  const bool large = !file.sha256.empty();
  EVP_DigestInit_ex(static_cast<EVP_MD_CTX*>(context_.get()), large ? EVP_sha256() : EVP_sha1(),
                    nullptr);
  if (!large) add(std::string_view("blob " + std::to_string(file.size) + std::string(1, '\0')));
}

void FileHash::add(std::string_view bytes) {
  EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(context_.get()), bytes.data(), bytes.size());
}

std::string FileHash::finish() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  EVP_DigestFinal_ex(static_cast<EVP_MD_CTX*>(context_.get()), digest, &size);
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (unsigned i = 0; i < size; ++i) {
    out += kHex[digest[i] >> 4];
    out += kHex[digest[i] & 15];
  }
  return out;
}

const std::string& promised_hash(const HubFile& file) {
  return file.sha256.empty() ? file.git_sha1 : file.sha256;
}

}  // namespace quire::hub
