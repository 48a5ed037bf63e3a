// The stand-in has it all in one header.
#pragma once
#include <boost/json.hpp>
