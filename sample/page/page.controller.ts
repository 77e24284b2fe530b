import { Controller, Get, Header, Headers } from '@nestjs/common';
import { CONTENT_SECURITY_POLICY, renderPage } from './page.html.js';

@Controller()
export class PageController {
  /** The address is the one that the visitor has used: what they copy from the page works where they are. */
  @Get()
  @Header('Content-Type', 'text/html; charset=utf-8')
  @Header('Content-Security-Policy', CONTENT_SECURITY_POLICY)
  @Header('X-Content-Type-Options', 'nosniff')
  page(@Headers('host') host = 'localhost:3000'): string {
    return renderPage(`http://${host}`);
  }
}
