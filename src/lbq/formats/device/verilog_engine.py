"""The engine of exported Verilog: one module that runs a program of instructions.

``@NAME@`` are numbers and names that the writer fills in. Verilog-2005; every memory is read
through a register, so that it can become block RAM.
"""

ENGINE = """// @NAME@: a spiking network in integers, written by lbq.
//
// Levels, currents and carries lie in memories whose words have the widths that the overflow proof
// asks for. A scanner puts levels that are not zero into a FIFO; the accumulator takes them out and
// adds weights to the currents: once for every unit of a level (VARIANT 0), once for every non-zero
// bit, shifted (1), or once, for levels that are powers of two (2). Pixels are added bit by bit.

module @NAME@ #(
    parameter VARIANT = 1
) (
    input  wire                 clk,
    input  wire                 rst,
    input  wire                 write,         // pixels, before start
    input  wire [@LA@-1:0]      write_at,
    input  wire [7:0]           write_pixel,
    input  wire                 start,         // the next frame, or the only one
    input  wire                 is_first,      // of a sample: forget carries and logits
    output reg                  done,
    input  wire [@OA@-1:0]      read_at,
    output reg  signed [31:0]   logit,
    output reg  [47:0]          accumulations,       // caused by levels of neurons
    output reg  [47:0]          input_accumulations, // caused by pixels
    output reg  [47:0]          other_accumulations, // of identity shortcuts
    output reg  [47:0]          cycles
);

    // Memories

    reg [@LW@-1:0]        levels [0:@LD@-1];
    reg signed [@AW@-1:0] currents [0:@AD@-1];
    reg signed [@CW@-1:0] carries [0:@CD@-1];
    reg signed [31:0]     logits [0:@OD@-1];
    reg signed [@WW@-1:0] weights [0:@WD@-1];
    reg signed [@BW@-1:0] biases [0:@BD@-1];
    reg signed [@TW@-1:0] thresholds [0:@TD@-1];
    reg signed [@RW@-1:0] resets [0:@RD@-1];

    initial begin
        $readmemh("@NAME@_weights.hex", weights);
        $readmemh("@NAME@_biases.hex", biases);
        $readmemh("@NAME@_thresholds.hex", thresholds);
        $readmemh("@NAME@_resets.hex", resets);
    end

    reg [@LA@-1:0] level_at, level_to;
    reg [@AA@-1:0] current_at, current_to;
    reg [@CA@-1:0] carry_at, carry_to;
    reg [@OA@-1:0] logit_at, logit_to;
    reg [@WA@-1:0] weight_at;
    reg [@BA@-1:0] bias_at;
    reg [@TA@-1:0] threshold_at;
    reg [@RA@-1:0] reset_at;
    reg [@LW@-1:0]        level_q, level_d;
    reg signed [@AW@-1:0] current_q, current_d;
    reg signed [@CW@-1:0] carry_q, carry_d;
    reg signed [31:0]     logit_q, logit_d;
    reg signed [@WW@-1:0] weight_q;
    reg signed [@BW@-1:0] bias_q;
    reg signed [@TW@-1:0] threshold_q;
    reg signed [@RW@-1:0] reset_q;
    reg level_we, current_we, carry_we, logit_we;

    always @(posedge clk) begin
        if (write) levels[write_at] <= @PIXEL@;
        else if (level_we) levels[level_to] <= level_d;
        if (current_we) currents[current_to] <= current_d;
        if (carry_we) carries[carry_to] <= carry_d;
        if (logit_we) logits[logit_to] <= logit_d;
        level_q <= levels[level_at];
        current_q <= currents[current_at];
        carry_q <= carries[carry_at];
        logit_q <= logits[logit_at];
        logit <= logits[read_at];
        weight_q <= weights[weight_at];
        bias_q <= biases[bias_at];
        threshold_q <= thresholds[threshold_at];
        reset_q <= resets[reset_at];
    end

    // Program

    localparam OP_END = 0, OP_START = 1, OP_SYNAPSE = 2, OP_NEURON = 3, OP_POOL = 4, OP_ADD = 5,
               OP_READ = 6;

    reg [@PA@-1:0] pc;
@FIELDS@
    always @* begin
@DEFAULTS@
        case (pc)
@PROGRAM@
            default: op = OP_END;
        endcase
    end

    // FIFO of events: where, and which level

    localparam EW = 3 * @XA@ + @LW@;
    reg [EW-1:0] fifo [0:15];
    reg [3:0] fifo_in, fifo_out;
    reg [4:0] fifo_count;
    wire [EW-1:0] fifo_head = fifo[fifo_out];
    reg push, pop;
    reg [EW-1:0] pushed;

    always @(posedge clk) begin
        if (push) fifo[fifo_in] <= pushed;
        if (rst) begin
            fifo_in <= 0;
            fifo_out <= 0;
            fifo_count <= 0;
        end else begin
            fifo_in <= fifo_in + {3'b000, push};
            fifo_out <= fifo_out + {3'b000, pop};
            fifo_count <= fifo_count + {4'b0000, push} - {4'b0000, pop};
        end
    end

    // Scanner: reads the levels of a map one after the other

    reg scan_begin, scanning, scan_valid;
    reg [@LA@-1:0] scan_at;
    reg [@XA@-1:0] scan_c, scan_y, scan_x, seen_c, seen_y, seen_x;
    wire scan_capacity = fifo_count < 13;
    wire scan_last_x = scan_x + 1 == width;
    wire scan_last_y = scan_y + 1 == height;
    wire scan_last_c = scan_c + 1 == channels;

    always @(posedge clk) begin
        push <= 0;
        scan_valid <= 0;
        if (rst) begin
            scanning <= 0;
        end else if (scan_begin) begin
            scanning <= 1;
            scan_at <= source[@LA@-1:0];
            scan_c <= 0;
            scan_y <= 0;
            scan_x <= 0;
        end else if (scanning && scan_capacity) begin
            scan_valid <= 1;
            seen_c <= scan_c;
            seen_y <= scan_y;
            seen_x <= scan_x;
            scan_at <= scan_at + 1;
            scan_x <= scan_last_x ? {@XA@{1'b0}} : scan_x + 1;
            if (scan_last_x) begin
                scan_y <= scan_last_y ? {@XA@{1'b0}} : scan_y + 1;
                if (scan_last_y) begin
                    scan_c <= scan_c + 1;
                    if (scan_last_c) scanning <= 0;
                end
            end
        end
        if (scan_valid && level_q != 0) begin
            push <= 1;
            pushed <= {seen_c, seen_y, seen_x, level_q};
        end
    end

    // Sequencer

    localparam IDLE = 0, CLEAR = 1, FETCH = 2, START_1 = 3, START_2 = 4, POP = 5, PLACE = 6,
               READ = 7, FIRST = 8, BITS = 9, NEURON_1 = 10, NEURON_2 = 11, NEURON_3 = 12,
               COMPARE_1 = 13, COMPARE_2 = 14, EMIT = 15, POOL_1 = 16, POOL_2 = 17,
               POOL_3 = 18, ADD_1 = 19, ADD_2 = 20, ADD_3 = 21, ADD_4 = 22, READ_1 = 23,
               READ_2 = 24, READ_3 = 25,
               DRAIN = 26;
    reg [4:0] state;
    reg [@TC@-1:0] t;
    reg [@IA@-1:0] n, m;          // elements of a node
    reg [@XA@-1:0] ev_c, ev_y, ev_x, ky, kx, o;
    reg [@LW@-1:0] ev_level, rest;
    reg signed [@AW@-1:0] sum;
    reg signed [@MW@-1:0] membrane;
    reg [@LW@-1:0] level, most;

    // Places are computed in 32 bits; names with _w are registers in that width.
    /* verilator lint_off UNUSEDSIGNAL */ // their upper bits are zero
@WIDE@
    wire signed [31:0] at_y = ev_y_w + pad_y_w - ky_w * dilation_y_w;
    wire signed [31:0] at_x = ev_x_w + pad_x_w - kx_w * dilation_x_w;
    wire signed [31:0] to_y = at_y >>> stride_y; // strides are powers of two
    wire signed [31:0] to_x = at_x >>> stride_x;
    wire signed [31:0] off_y = at_y & ((32'sd1 <<< stride_y) - 32'sd1);
    wire signed [31:0] off_x = at_x & ((32'sd1 <<< stride_x) - 32'sd1);
    wire is_inside = at_y >= 0 && at_x >= 0 && off_y == 0 && off_x == 0 &&
                     to_y < made_height_w && to_x < made_width_w;
    wire is_last_tap = kx + 1 == kernel_x && ky + 1 == kernel_y;
    wire signed [31:0] group = depthwise ? ev_c_w : 32'sd0;
    wire signed [31:0] weight_first = weight_base_w + ev_c_w * taps_w + ky_w * kernel_x_w + kx_w;
    wire signed [31:0] current_first = target_w + group * positions_w + to_y * made_width_w + to_x;
    wire signed [31:0] pool_y = ev_y_w * stride_y_full_w + ky_w - pad_y_w;
    wire signed [31:0] pool_x = ev_x_w * stride_x_full_w + kx_w - pad_x_w;
    wire pool_inside = pool_y >= 0 && pool_x >= 0 && pool_y < height_w && pool_x < width_w;
    wire signed [31:0] pool_at = source_w + (ev_c_w * height_w + pool_y) * width_w + pool_x;
    wire signed [31:0] threshold_step = ev_c_w * max_level_w;
    wire signed [@PW@-1:0] decayed = (carry_q * $signed({1'b0, multiplier})) >>> shift;
    /* verilator lint_on UNUSEDSIGNAL */

    integer bit_number;
    reg [4:0] lowest;
    always @* begin
        lowest = 0;
        for (bit_number = @LW@ - 1; bit_number >= 0; bit_number = bit_number - 1)
            if (rest[bit_number]) lowest = bit_number[4:0];
    end
    wire signed [@AW@-1:0] wide_weight = @WEIGHT@;
    wire is_unary = VARIANT == 0 && kind != 1; // pixels are added by bits in every variant
    wire is_single = VARIANT == 2 && kind != 1;
    wire signed [@AW@-1:0] term = is_unary ? wide_weight : wide_weight <<< lowest;
    wire [@LW@-1:0] rest_next = is_unary ? rest - 1 : is_single ? {@LW@{1'b0}} : rest & (rest - 1);

    wire [@LW@-1:0] units = reset_mode == @RESET_EVENT@ ? {{@LW@-1{1'b0}}, level != 0} :
                            reset_mode == @RESET_LEVEL@ ? level : {@LW@{1'b0}};
    wire signed [@MW@-1:0] reset_total = @RESET_M@ * @UNITS_M@;
    wire signed [@MW@-1:0] after =
        (reset_mode == @RESET_ZERO@ && level != 0) ? {@MW@{1'b0}} : membrane - reset_total;

    always @* level_at = op == OP_SYNAPSE ? scan_at : pool_at[@LA@-1:0];

    always @(posedge clk) begin
        level_we <= 0;
        current_we <= 0;
        carry_we <= 0;
        logit_we <= 0;
        pop <= 0;
        scan_begin <= 0;
        if (state != IDLE) cycles <= cycles + 1;
        if (rst) begin
            state <= IDLE;
            done <= 0;
            accumulations <= 0;
            input_accumulations <= 0;
            other_accumulations <= 0;
            cycles <= 0;
        end else case (state)
            IDLE: if (start) begin
                done <= 0;
                n <= 0;
                t <= 0;
                pc <= is_first ? 0 : @LOOP@;
                state <= is_first ? CLEAR : FETCH;
            end
            CLEAR: begin // carries and logits
                carry_we <= n < @CD@;
                carry_to <= n[@CA@-1:0];
                carry_d <= 0;
                logit_we <= n < @OD@;
                logit_to <= n[@OA@-1:0];
                logit_d <= 0;
                n <= n + 1;
                if (n + 1 >= @CLEARED@) state <= FETCH;
            end
            FETCH: begin
                n <= 0;
                m <= 0;
                ky <= 0;
                kx <= 0;
                ev_c <= 0;
                ev_y <= 0;
                ev_x <= 0;
                most <= 0;
                case (op)
                    OP_START: begin bias_at <= bias_base; state <= START_1; end
                    OP_SYNAPSE: begin scan_begin <= 1; state <= DRAIN; end
                    OP_NEURON: state <= NEURON_1;
                    OP_POOL: state <= POOL_1;
                    OP_ADD: state <= ADD_1;
                    OP_READ: state <= READ_1;
                    default: begin // the end of a timestep
                        t <= t + 1;
                        pc <= @LOOP@;
                        if (t + 1 == @STEPS@) begin
                            state <= IDLE;
                            done <= 1;
                        end
                    end
                endcase
            end

            // currents = bias
            START_1: state <= START_2;
            START_2: begin
                current_we <= 1;
                current_to <= target[@AA@-1:0] + n[@AA@-1:0];
                current_d <= has_bias ? @BIAS@ : {@AW@{1'b0}};
                n <= n + 1;
                m <= m + 1 == repeats ? {@IA@{1'b0}} : m + 1;
                if (m + 1 == repeats) begin
                    bias_at <= bias_at + 1;
                    state <= START_1;
                end
                if (n + 1 == count) begin
                    pc <= pc + 1;
                    state <= FETCH;
                end
            end

            // currents += weights * levels
            DRAIN: state <= POP; // the scanner starts
            POP: if (fifo_count != 0 && !pop) begin
                {ev_c, ev_y, ev_x, ev_level} <= fifo_head;
                pop <= 1;
                ky <= 0;
                kx <= 0;
                state <= PLACE;
            end else if (!scanning && !scan_begin && !scan_valid && !push && fifo_count == 0) begin
                pc <= pc + 1;
                state <= FETCH;
            end
            PLACE: if (is_inside) begin
                o <= 0;
                weight_at <= weight_first[@WA@-1:0];
                current_at <= current_first[@AA@-1:0];
                state <= READ;
            end else begin
                kx <= kx + 1 == kernel_x ? {@XA@{1'b0}} : kx + 1;
                if (kx + 1 == kernel_x) ky <= ky + 1;
                if (is_last_tap) state <= POP;
            end
            READ: state <= FIRST;
            FIRST: begin
                sum <= current_q;
                rest <= ev_level;
                state <= BITS;
            end
            BITS: if (rest != 0) begin
                sum <= sum + term;
                rest <= rest_next;
                if (kind == 0) accumulations <= accumulations + 1;
                else if (kind == 1) input_accumulations <= input_accumulations + 1;
                else other_accumulations <= other_accumulations + 1;
            end else begin
                current_we <= 1;
                current_to <= current_at;
                current_d <= sum;
                o <= o + 1;
                weight_at <= weight_at + weight_step;
                current_at <= current_at + positions[@AA@-1:0];
                if (o + 1 == made) begin
                    kx <= kx + 1 == kernel_x ? {@XA@{1'b0}} : kx + 1;
                    if (kx + 1 == kernel_x) ky <= ky + 1;
                    state <= is_last_tap ? POP : PLACE;
                end else state <= READ;
            end

            // neurons: decay, integrate, count thresholds, reset
            NEURON_1: begin
                current_at <= source[@AA@-1:0] + n[@AA@-1:0];
                carry_at <= carry_base + n[@CA@-1:0];
                state <= NEURON_2;
            end
            NEURON_2: begin
                threshold_at <= threshold_base + (thresholds_differ ? threshold_step[@TA@-1:0] : 0);
                reset_at <= reset_base + (resets_differ ? ev_c_w[@RA@-1:0] : 0);
                state <= NEURON_3;
            end
            NEURON_3: begin
                membrane <= @CURRENT_M@ + decayed[@MW@-1:0];
                level <= 0;
                state <= COMPARE_1;
            end
            COMPARE_1: if (level < max_level && @MEMBRANE_K@ >= @THRESHOLD_K@) begin
                level <= level + 1;
                threshold_at <= threshold_at + 1;
                state <= COMPARE_2;
            end else state <= EMIT;
            COMPARE_2: state <= COMPARE_1;
            EMIT: begin
                level_we <= 1;
                level_to <= target[@LA@-1:0] + n[@LA@-1:0];
                level_d <= level;
                carry_we <= 1;
                carry_to <= carry_at;
                carry_d <= after[@CW@-1:0];
                n <= n + 1;
                m <= m + 1 == positions ? {@IA@{1'b0}} : m + 1;
                if (m + 1 == positions) ev_c <= ev_c + 1;
                if (n + 1 == count) begin
                    pc <= pc + 1;
                    state <= FETCH;
                end else state <= NEURON_1;
            end

            // pools of levels: the largest, or the sum
            POOL_1: state <= POOL_2; // the level is read
            POOL_2: begin
                if (pool_inside) begin
                    if (is_sum) most <= most + level_q;
                    else if (level_q > most) most <= level_q;
                end
                kx <= kx + 1 == kernel_x ? {@XA@{1'b0}} : kx + 1;
                if (kx + 1 == kernel_x) ky <= is_last_tap ? {@XA@{1'b0}} : ky + 1;
                state <= is_last_tap ? POOL_3 : POOL_1;
            end
            POOL_3: begin
                level_we <= 1;
                level_to <= target[@LA@-1:0] + n[@LA@-1:0];
                level_d <= most;
                most <= 0;
                n <= n + 1;
                ev_x <= ev_x + 1 == made_width ? {@XA@{1'b0}} : ev_x + 1;
                if (ev_x + 1 == made_width) begin
                    ev_y <= ev_y + 1 == made_height ? {@XA@{1'b0}} : ev_y + 1;
                    if (ev_y + 1 == made_height) ev_c <= ev_c + 1;
                end
                if (n + 1 == count) begin
                    pc <= pc + 1;
                    state <= FETCH;
                end else state <= POOL_1;
            end

            // currents = currents, or += currents
            ADD_1: begin
                current_at <= source[@AA@-1:0] + n[@AA@-1:0];
                state <= ADD_2;
            end
            ADD_2: begin
                current_at <= target[@AA@-1:0] + n[@AA@-1:0];
                state <= ADD_3;
            end
            ADD_3: begin
                sum <= current_q;
                state <= ADD_4;
            end
            ADD_4: begin
                current_we <= 1;
                current_to <= target[@AA@-1:0] + n[@AA@-1:0];
                current_d <= adds ? sum + current_q : sum;
                n <= n + 1;
                if (n + 1 == count) begin
                    pc <= pc + 1;
                    state <= FETCH;
                end else state <= ADD_1;
            end

            // logits += currents
            READ_1: begin
                current_at <= source[@AA@-1:0] + n[@AA@-1:0];
                logit_at <= target[@OA@-1:0] + n[@OA@-1:0];
                state <= READ_2;
            end
            READ_2: state <= READ_3;
            READ_3: begin
                logit_we <= 1;
                logit_to <= logit_at;
                logit_d <= logit_q + @CURRENT_O@;
                n <= n + 1;
                if (n + 1 == count) begin
                    pc <= pc + 1;
                    state <= FETCH;
                end else state <= READ_1;
            end
            default: state <= IDLE;
        endcase
    end
endmodule
"""

TESTBENCH = """// Runs @SAMPLES@ samples through @NAME@ and compares every logit.
`timescale 1ns / 1ps

module @NAME@_tb;
    parameter VARIANT = 1;
    parameter SAMPLES = @SAMPLES@;

    reg clk = 0;
    reg rst = 1;
    reg write = 0, start = 0, is_first = 0;
    reg [@LA@-1:0] write_at = 0;
    reg [7:0] write_pixel = 0;
    reg [@OA@-1:0] read_at = 0;
    wire done;
    wire signed [31:0] logit;
    wire [47:0] accumulations, input_accumulations, other_accumulations, cycles;

    reg [7:0] samples [0:@SAMPLES@*@FRAMES@*@PIXELS@-1];
    reg signed [31:0] logits [0:@SAMPLES@*@OUTPUTS@-1];
    integer s, f, i, wrong;

    @NAME@ #(.VARIANT(VARIANT)) dut (
        .clk(clk), .rst(rst), .write(write), .write_at(write_at), .write_pixel(write_pixel),
        .start(start), .is_first(is_first), .done(done), .read_at(read_at), .logit(logit),
        .accumulations(accumulations), .input_accumulations(input_accumulations),
        .other_accumulations(other_accumulations), .cycles(cycles)
    );

    always #5 clk = ~clk;

    initial begin
        $readmemh("@NAME@_samples.hex", samples);
        $readmemh("@NAME@_logits.hex", logits);
        wrong = 0;
        repeat (4) @(negedge clk);
        rst = 0;
        for (s = 0; s < SAMPLES; s = s + 1) begin
            for (f = 0; f < @FRAMES@; f = f + 1) begin
                for (i = 0; i < @PIXELS@; i = i + 1) begin
                    write = 1;
                    write_at = @FIRST@ + i;
                    write_pixel = samples[(s * @FRAMES@ + f) * @PIXELS@ + i];
                    @(negedge clk);
                end
                write = 0;
                start = 1;
                is_first = f == 0;
                @(negedge clk);
                start = 0;
                while (!done) @(negedge clk);
            end
            for (i = 0; i < @OUTPUTS@; i = i + 1) begin
                read_at = i;
                @(negedge clk);
                @(negedge clk);
                if (logit !== logits[s * @OUTPUTS@ + i]) wrong = wrong + 1;
            end
        end
        $display("samples %0d wrong %0d", SAMPLES, wrong);
        $display("accumulations %0d input %0d other %0d", accumulations, input_accumulations,
                 other_accumulations);
        $display("cycles %0d", cycles);
        $finish;
    end
endmodule
"""
