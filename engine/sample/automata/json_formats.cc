#include "engine/sample/automata/json_formats.h"

namespace quire {
namespace {

std::string date() {
  // Python and other languages have no year 0.
  return "[1-9][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
         "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))";
}

std::string time() {
  const std::string hours = "(?:[01][0-9]|2[0-3])", sixty = "[0-5][0-9]";
  return hours + ":" + sixty + ":" + sixty + "(?:\\.[0-9]{1,6})?(?:Z|[+-]" + hours + ":" + sixty +
         ")";
}

/// Returns the expression of a UUID, of one version where `version` is its digit.
std::string uuid(std::string_view version) {
  const std::string last = version.empty() ? "[0-9a-f]{4}-[0-9a-f]{4}"
                                           : std::string(version) + "[0-9a-f]{3}-[89ab][0-9a-f]{3}";
  return "[0-9a-f]{8}-[0-9a-f]{4}-" + last + "-[0-9a-f]{12}";
}

}  // namespace

std::string json_format_expression(std::string_view format) {
  const std::string label = "[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?";
  const std::string domain = "(?:" + label + "\\.){1,3}[a-z]{2,10}";
  const std::string octet = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
  const std::string ipv4 = octet + "(?:\\." + octet + "){3}";
  const std::string ipv6 = "(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}";
  if (format == "date") return date();
  if (format == "time") return time();
  if (format == "date-time") return date() + "T" + time();
  if (format == "duration")
    return "P(?:[0-9]{1,3}W|[0-9]{1,4}D(?:T[0-9]{1,2}H)?|T(?:[0-9]{1,2}H)?[0-9]{1,2}M|"
           "T[0-9]{1,5}S)";
  if (format == "uuid") return uuid("");
  // The names that pydantic gives to one version.
  if (format.size() == 5 && format.starts_with("uuid") && format[4] >= '1' && format[4] <= '8')
    return uuid(format.substr(4));
  if (format == "email") return "[A-Za-z0-9_+-]{1,24}(?:\\.[A-Za-z0-9_+-]{1,24}){0,3}@" + domain;
  if (format == "hostname") return label + "(?:\\." + label + "){0,3}";
  if (format == "ipv4") return ipv4;
  if (format == "ipv6") return ipv6;
  if (format == "ipvanyaddress") return ipv4 + "|" + ipv6;
  if (format == "uri")
    return "https?://" + domain + "(?::[1-9][0-9]{0,3})?(?:/[A-Za-z0-9._~-]{0,40}){0,6}";
  if (format == "base64") return "(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?";
  // It says how a form shows the text, whatever that is.
  if (format == "password") return "[\\s\\S]*";
  return {};
}

}  // namespace quire
