import {
  BadRequestException,
  Controller,
  HttpStatus,
  Injectable,
  Param,
  type PipeTransform,
  Post,
  Res,
} from '@nestjs/common';
import { OrdersService, type Payment } from './orders.service.js';

@Injectable()
class OrderIdPipe implements PipeTransform<string, string> {
  transform(id: string): string {
    if (/^[\w-]{1,64}$/.test(id)) return id;
    throw new BadRequestException('An order id is 1 to 64 letters, digits, "_" or "-".');
  }
}

@Controller('orders')
export class OrdersController {
  constructor(private readonly orders: OrdersService) {}

  /**
   * 201: this call has charged the order. 200: it was charged before. 423: other calls still hold the lock
   * after 5 s.
   */
  @Post(':id/pay')
  async pay(
    @Param('id', OrderIdPipe) id: string,
    @Res({ passthrough: true }) response: { status(code: number): unknown },
  ): Promise<Payment> {
    const payment = await this.orders.pay(id);
    response.status(payment.charged ? HttpStatus.CREATED : HttpStatus.OK);
    return payment;
  }
}
