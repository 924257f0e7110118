"""date: ISO text of the years 1 to 9999; send format: days since 2000-01-01."""

from libc.stdint cimport int32_t, int64_t, uint8_t

cdef int POSTGRES_EPOCH_DAYS = 10_957

cdef extern from *:
    """
    /* Days since 1970-01-01 in the proleptic Gregorian calendar; the caller checks the date. */
    static inline int64_t cdcd_days(int64_t year, int month, int day) {
        int64_t shifted = year - (month <= 2);
        int64_t era = (shifted >= 0 ? shifted : shifted - 399) / 400;
        int64_t of_era = shifted - era * 400;
        int64_t of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
        return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
    }

    static inline int cdcd_month_days(int year, int month) {
        static const uint8_t days[12] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
        if (month == 2 && year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)) return 29;
        return days[month - 1];
    }
    """
    int64_t cdcd_days(int64_t, int, int) noexcept
    int cdcd_month_days(int, int) noexcept

cdef inline int _two_digits(const uint8_t* p) noexcept:
    if not (_is_digit(p[0]) and _is_digit(p[1])):
        return -1
    return (p[0] - c'0') * 10 + (p[1] - c'0')


cdef int _day(const uint8_t* p, int64_t* days) noexcept:
    """Parse YYYY-MM-DD of a year from 1 to 9999."""
    cdef int century = _two_digits(p), rest = _two_digits(p + 2)
    cdef int month = _two_digits(p + 5), day = _two_digits(p + 8), year
    if century < 0 or rest < 0 or month < 1 or month > 12 or day < 1 or p[4] != c'-' or p[7] != c'-':
        return DECLINED
    year = century * 100 + rest
    if year == 0 or day > cdcd_month_days(year, month):
        return DECLINED
    days[0] = cdcd_days(year, month, day)
    return DONE

cdef int _date_text(Buffer* out, const uint8_t* p, Py_ssize_t size) except -1:
    cdef int64_t days = 0
    if size != 10 or _day(p, &days) != DONE:
        return DECLINED
    _put_long(out, days)
    return DONE


cdef int _date_binary(Buffer* out, const uint8_t* p, Py_ssize_t size) except -1:
    cdef int32_t days
    if size != 4:
        return DECLINED
    days = <int32_t>cdcd_u32(p)
    if days == 0x7FFFFFFF or days == -0x7FFFFFFF - 1:
        return DECLINED
    _put_long(out, <int64_t>days + POSTGRES_EPOCH_DAYS)
    return DONE
