/* Start a Cortex-M of QEMU's mps2 boards, run the samples of samples.h, print with semihosting. */
#include "net.h"
#include "samples.h"

#include <stdint.h>

extern uint32_t stack_top, data_start, data_end, data_load, bss_start, bss_end;
void reset(void);

__attribute__((section(".vectors"), used)) static const void *const vectors[2] = {
    &stack_top, (const void *)reset};

/* newlib is not linked: the compiler may call these. */
void *memset(void *to, int value, __SIZE_TYPE__ count)
{
    uint8_t *bytes = to;
    while (count--) {
        *bytes++ = (uint8_t)value;
    }
    return to;
}

void *memcpy(void *restrict to, const void *restrict from, __SIZE_TYPE__ count)
{
    uint8_t *bytes = to;
    const uint8_t *source = from;
    while (count--) {
        *bytes++ = *source++;
    }
    return to;
}

static int call(int number, const void *argument)
{
    register int r0 __asm__("r0") = number;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

static void print_number(int64_t value, char end)
{
    char text[24], *at = text + 23;
    const int is_negative = value < 0;
    uint64_t rest = is_negative ? (uint64_t)-value : (uint64_t)value;
    *at = 0;
    *--at = end;
    do {
        *--at = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest);
    if (is_negative) {
        *--at = '-';
    }
    call(0x04, at); /* SYS_WRITE0 */
}

#define SYSTICK ((volatile uint32_t *)0xE000E010)

/* SysTick counts down from 2^24 - 1 and its interrupt is off: the flag of a turn is polled. */
static uint64_t turns;
static uint64_t ticks(void)
{
    turns += (SYSTICK[0] >> 16) & 1;
    return turns * 0x1000000 + (0xFFFFFF - SYSTICK[2]);
}

void reset(void)
{
    static int32_t logits[NET_OUTPUTS];
    uint32_t *from = &data_load;
    for (uint32_t *to = &data_start; to < &data_end;) {
        *to++ = *from++;
    }
    for (uint32_t *to = &bss_start; to < &bss_end;) {
        *to++ = 0;
    }
    SYSTICK[1] = 0xFFFFFF;
    SYSTICK[2] = 0;
    SYSTICK[0] = 5; /* the processor's clock */
    while (SYSTICK[2] == 0) {
    }
    for (int n = 0; n < NUM_SAMPLES; ++n) {
        const uint64_t before = ticks();
        net_run(samples[n], logits);
        print_number((int64_t)(ticks() - before), ':');
        for (int i = 0; i < NET_OUTPUTS; ++i) {
            print_number(logits[i], i + 1 < NET_OUTPUTS ? ' ' : '\n');
        }
    }
    call(0x18, (const void *)0x20026); /* SYS_EXIT, because the application ended */
    for (;;) {
    }
}
