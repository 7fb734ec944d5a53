// What torch's headers want of thrust: names for complex numbers, of which no kernel makes use.
#pragma once
#include <complex>

namespace thrust {

template <typename T>
class complex : public std::complex<T> {
 public:
  __host__ __device__ complex(T real = T(), T imag = T()) : std::complex<T>(real, imag) {}
  __host__ __device__ complex(const std::complex<T>& other) : std::complex<T>(other) {}
};

template <typename T>
const std::complex<T>& plain(const complex<T>& z) {
  return z;
}
#define RFOPS_COMPLEX(name)              \
  template <typename T>                  \
  complex<T> name(const complex<T>& z) { \
    return std::name(plain(z));          \
  }
RFOPS_COMPLEX(acos)
RFOPS_COMPLEX(acosh)
RFOPS_COMPLEX(asin)
RFOPS_COMPLEX(asinh)
RFOPS_COMPLEX(atan)
RFOPS_COMPLEX(atanh)
RFOPS_COMPLEX(cos)
RFOPS_COMPLEX(cosh)
RFOPS_COMPLEX(exp)
RFOPS_COMPLEX(log)
RFOPS_COMPLEX(log10)
RFOPS_COMPLEX(sin)
RFOPS_COMPLEX(sinh)
RFOPS_COMPLEX(sqrt)
RFOPS_COMPLEX(tan)
RFOPS_COMPLEX(tanh)
#undef RFOPS_COMPLEX
template <typename T>
T abs(const complex<T>& z) {
  return std::abs(plain(z));
}
template <typename T>
T arg(const complex<T>& z) {
  return std::arg(plain(z));
}
template <typename T>
complex<T> polar(const T& radius, const T& angle = T()) {
  return std::polar(radius, angle);
}
template <typename T, typename U>
auto pow(const T& x, const U& y) {
  const auto power = std::pow(x, y);
  return complex<typename decltype(power)::value_type>(power);
}

}  // namespace thrust
